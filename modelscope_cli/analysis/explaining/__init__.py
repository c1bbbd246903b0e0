"""Why a model says what it says, and how far the answer can be trusted."""
