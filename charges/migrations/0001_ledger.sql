-- The ledger. Every text column that is paged by is COLLATE "C": its order
-- does not change with the operating system's locale data, and neither does
-- the index.

CREATE TABLE duesday.customers (
    id                 text PRIMARY KEY,
    stripe_customer_id text,
    payment_method     text,
    amount             bigint,
    currency           text,
    active             boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE duesday.customers IS
    'Whom to bill. Yours to fill, or to leave empty and name another table or view with --customers.';
COMMENT ON COLUMN duesday.customers.stripe_customer_id IS 'cus_…; null: id serves';
COMMENT ON COLUMN duesday.customers.payment_method IS 'null: the customer''s default at Stripe';
COMMENT ON COLUMN duesday.customers.amount IS 'in the currency''s smallest unit: 1999 is $19.99, and 1999 is also ¥1999';
COMMENT ON COLUMN duesday.customers.currency IS 'lower-case ISO 4217';

CREATE TABLE duesday.periods (
    billing_period text PRIMARY KEY CHECK (billing_period ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
    key_namespace  text NOT NULL,
    opened_at      timestamptz NOT NULL,
    settled_at     timestamptz,
    -- Every due up to and with this customer has a slot; null: none yet.
    claim_cursor   text COLLATE "C"
);

CREATE TABLE duesday.dues (
    billing_period     text NOT NULL REFERENCES duesday.periods,
    customer_id        text COLLATE "C" NOT NULL,
    stripe_customer_id text,
    payment_method     text,
    amount             bigint,
    currency           text,
    description        text NOT NULL,
    stripe_method      text NOT NULL,
    -- Why this due can never be sent to Stripe as it is; null: it can.
    reject_code        text,
    PRIMARY KEY (billing_period, customer_id)
);

CREATE TABLE duesday.totals (
    billing_period text NOT NULL REFERENCES duesday.periods,
    currency       text NOT NULL,
    expected_total bigint NOT NULL CHECK (expected_total >= 0),
    cap            bigint NOT NULL,
    claimed_total  bigint NOT NULL DEFAULT 0 CHECK (claimed_total >= 0),
    PRIMARY KEY (billing_period, currency),
    CONSTRAINT spend_cap CHECK (claimed_total <= cap)
);

CREATE TABLE duesday.charges (
    customer_id     text COLLATE "C" NOT NULL,
    billing_period  text NOT NULL,
    attempt         integer NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    idempotency_key text NOT NULL CHECK (idempotency_key ~ '^[0-9a-f]{32}$'),
    amount          bigint,
    currency        text,
    status          text NOT NULL
        CHECK (status IN ('claimed', 'processing', 'succeeded', 'declined', 'rejected')),
    charge_id       text,
    failure_code    text,
    failure_message text,
    -- The decline is of a kind that only the customer can mend: a new attempt
    -- is not made by itself.
    needs_customer  boolean NOT NULL DEFAULT false,
    claimed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Stripe keeps a key for 24 hours from its first receipt, which is never
    -- before this moment. Moved on, before the send, when a slot that is older
    -- was looked up and not found.
    key_window_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at      timestamptz,
    CONSTRAINT charges_once UNIQUE (customer_id, billing_period),
    CONSTRAINT charges_key UNIQUE (idempotency_key),
    CHECK (status = 'rejected' OR (amount IS NOT NULL AND amount > 0 AND currency IS NOT NULL)),
    CHECK ((status = 'claimed') = (settled_at IS NULL) OR status = 'processing')
);
-- What a run recovers and a reconcile settles or tries anew: small in quiet times.
CREATE INDEX charges_open ON duesday.charges (billing_period, status, customer_id)
    WHERE status IN ('claimed', 'processing', 'declined');

CREATE TABLE duesday.attempts (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id     text COLLATE "C" NOT NULL,
    billing_period  text NOT NULL,
    attempt         integer NOT NULL,
    idempotency_key text NOT NULL,
    amount          bigint,
    currency        text,
    status          text NOT NULL,
    charge_id       text,
    failure_code    text,
    failure_message text,
    request_id      text,
    settled_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX attempts_slot ON duesday.attempts (customer_id, billing_period, attempt);

CREATE FUNCTION duesday.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'duesday.% is append-only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER attempts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duesday.attempts
    FOR EACH STATEMENT EXECUTE FUNCTION duesday.refuse_change();

CREATE TABLE duesday.runs (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    command        text NOT NULL,
    billing_period text NOT NULL,
    holder         text NOT NULL,
    -- The heart: who holds the period's lock, and a count that grows while it
    -- lives. Others judge by the growth alone, never by a clock.
    lock_id        bigint NOT NULL,
    backend_pid    integer NOT NULL,
    beats          bigint NOT NULL DEFAULT 0,
    beat_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    exit_code      integer,
    outcome        text,
    counts         jsonb,
    -- By currency: from, to, and the database role that raised it.
    raised_caps    jsonb
) WITH (fillfactor = 50);
CREATE INDEX runs_lock ON duesday.runs (lock_id, id);
