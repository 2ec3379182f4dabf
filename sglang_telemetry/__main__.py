"""``python -m sglang_telemetry`` is ``sglang-telemetry``."""

import sys

from sglang_telemetry.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
