"""Routes of Triton and OpenVINO Model Server that are refused by name."""
