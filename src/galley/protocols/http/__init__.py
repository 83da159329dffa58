"""What the routes of all protocols share: bodies and forms read, answers and events sent, errors told."""
