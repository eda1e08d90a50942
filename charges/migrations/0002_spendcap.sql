-- The spend-cap proxy's books. They share nothing with the ledger: each must
-- hold where the other fails.

-- What may be spent in a period. It outlives the period's vault keys, so that a
-- new key never brings new money.
CREATE TABLE duesday.vault_limits (
    billing_period text NOT NULL CHECK (billing_period ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
    currency       text NOT NULL CHECK (currency ~ '^[a-z]{3}$'),
    max_amount     bigint NOT NULL CHECK (max_amount >= 0),
    -- Held for charges in flight and in doubt, and spent.
    reserved       bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    PRIMARY KEY (billing_period, currency),
    CONSTRAINT vault_spend_cap CHECK (reserved <= max_amount)
) WITH (fillfactor = 50);

CREATE TABLE duesday.vault_keys (
    id             text COLLATE "C" PRIMARY KEY,
    billing_period text NOT NULL,
    -- SHA-256 of 256 random bits: there is no dictionary to try against it, so
    -- a slow hash would only slow down every request.
    secret_hash    bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    endpoints      text[] NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    revoked_at     timestamptz,
    -- The key that took its place; null: none, or revoked outright.
    superseded_by  text
);
CREATE UNIQUE INDEX vault_keys_live ON duesday.vault_keys (billing_period) WHERE revoked_at IS NULL;
CREATE INDEX vault_keys_period ON duesday.vault_keys (billing_period, created_at);

CREATE TABLE duesday.vault_reservations (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    billing_period  text NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    -- Stripe may forget a key after 24 hours and charge again: the same key
    -- then is a new generation, with a reservation of its own.
    generation      integer NOT NULL CHECK (generation >= 1),
    fingerprint     bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    amount          bigint NOT NULL CHECK (amount > 0),
    currency        text NOT NULL,
    status          text NOT NULL DEFAULT 'held' CHECK (status IN ('held', 'spent', 'freed')),
    -- Sends that may have charged, as far as anyone knows.
    open_sends      integer NOT NULL DEFAULT 1 CHECK (open_sends >= 0),
    spent_amount    bigint,
    charge_id       text,
    reserved_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    spent_at        timestamptz,
    freed_at        timestamptz,
    CONSTRAINT vault_reservations_once UNIQUE (billing_period, idempotency_key, generation),
    FOREIGN KEY (billing_period, currency) REFERENCES duesday.vault_limits,
    CHECK ((status = 'spent') = (spent_amount IS NOT NULL))
) WITH (fillfactor = 80);
CREATE INDEX vault_reservations_held ON duesday.vault_reservations (billing_period, id) WHERE status = 'held';

-- One row a creating call, refused or not: the audit trail.
CREATE TABLE duesday.vault_calls (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vault_key_id    text NOT NULL,
    billing_period  text NOT NULL,
    endpoint        text NOT NULL,
    idempotency_key text,
    amount          bigint,
    currency        text,
    reservation_id  bigint,
    called_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- null: in flight, or its end was never written.
    outcome         text,
    http_status     integer,
    request_id      text,
    finished_at     timestamptz
) WITH (fillfactor = 80);
CREATE INDEX vault_calls_period ON duesday.vault_calls (billing_period, id);
