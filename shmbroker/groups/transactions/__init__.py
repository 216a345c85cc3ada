"""The transaction coordinator: transactional ids, what is open of them, and how they end."""
