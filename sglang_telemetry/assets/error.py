"""What is wrong with an export: the words for the person at the terminal, who has no use for a traceback."""


class AssetError(ValueError):
    """An option that makes no sense, a folder that cannot be used, or a rule file that does not keep the agreed form.

    Its text is one line that names the fix.
    """
