"""What is made from the code: man pages, completions, pages and pictures of documents."""
