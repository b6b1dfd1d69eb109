-- `user` is a reserved word that, unquoted, silently means the database role: hence `users`.
CREATE TABLE users (
    user_id uuid PRIMARY KEY,
    email text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    subscription_tier text NOT NULL CHECK (subscription_tier IN ('paid', 'free'))
);
CREATE UNIQUE INDEX users_email ON users (lower(email));

-- A secret has 256 random bits, so SHA-256 without salt or stretching is as hard to undo as the secret is to guess.
CREATE TABLE api_key (
    hash bytea PRIMARY KEY CHECK (length(hash) = 32),
    key_id text NOT NULL UNIQUE,
    user_id uuid NOT NULL REFERENCES users,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
CREATE INDEX api_key_user ON api_key (user_id, created_at);

-- A view of chat.turns. No foreign key to users: a view never refuses what the log says, nor waits for another table.
-- The *_at columns beside title and metadata are append times of the events that set them, so that reading the log
-- again changes nothing. A deleted session keeps its row, without text, so that nothing is inserted under it again.
CREATE TABLE chat_session (
    session_id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    title text,
    titled_at timestamptz,
    metadata jsonb NOT NULL DEFAULT '{}',
    described_at timestamptz,
    listed boolean NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    deleted_at timestamptz
);
CREATE INDEX chat_session_list ON chat_session (user_id, updated_at DESC, session_id DESC)
    WHERE listed AND deleted_at IS NULL;
