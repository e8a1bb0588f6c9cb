"""What is made from the code: man pages, completions, the page of metrics and the pictures of documents."""
