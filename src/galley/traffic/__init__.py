"""Records of a server's traffic, without its texts, and how they are read back for a replay."""
