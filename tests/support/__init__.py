"""Servers, corpora and judges that tests share; nothing here is a test."""
