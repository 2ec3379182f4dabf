"""What lies in a checkpoint folder, read without torch: names and shapes of its tensors, samples of their data.

Nothing in a file is executed or believed: every length is compared with the file's size before it is used, so that a
torn or hostile checkpoint costs a fault in words and never the process that looks at it.
"""
