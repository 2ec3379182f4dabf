"""The process beside the trainers: follows their journals and serves what they say. It never imports torch."""
