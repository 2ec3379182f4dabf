"""What the SGLang server is really running: asking it, and what follows from its answers. No sink, no thread here."""
