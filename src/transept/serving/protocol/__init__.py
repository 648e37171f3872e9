"""What goes over the wire: bodies of requests and of answers, as clients of OpenAI's API know them."""
