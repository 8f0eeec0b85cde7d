"""The halves of systems that need torch: cross-attentions of their own, and losses."""
