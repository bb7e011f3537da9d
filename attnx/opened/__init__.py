"""Model files: where they are, what they hold, and how they are opened, cached and kept within memory."""
