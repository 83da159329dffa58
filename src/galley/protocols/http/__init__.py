"""HTTP code shared by the routes of all protocols: bodies, forms, answers, events, errors."""
