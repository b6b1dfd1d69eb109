-- Hash of the body of the keyed request that opened a session: the same key with another body is refused.
ALTER TABLE chat_session ADD COLUMN opened_with text;
