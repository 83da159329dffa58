"""Text to speech, outside of the model: pieces of text, words written out, phonemes, audio formats."""
