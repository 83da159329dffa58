"""``/v1/responses``, and the stored responses."""
