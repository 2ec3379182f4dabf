"""``python -m sglang_telemetry.testing``: a fake SGLang server as a process."""

from sglang_telemetry.testing.fake_sglang import main

if __name__ == "__main__":
    main()
