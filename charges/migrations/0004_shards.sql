-- Shards: runs that bill a period's customers between them.

-- How far each shard has come, by how many there were: every due of its
-- customers, up to and with this one, has a slot. periods.claim_cursor takes
-- from it what all shards together have come to.
CREATE TABLE duesday.shard_cursors (
    billing_period text NOT NULL REFERENCES duesday.periods,
    shards         integer NOT NULL CHECK (shards > 1),
    shard          integer NOT NULL CHECK (shard >= 0 AND shard < shards),
    claim_cursor   text COLLATE "C" NOT NULL,
    PRIMARY KEY (billing_period, shards, shard)
) WITH (fillfactor = 50);

-- Null: the run has the period alone.
ALTER TABLE duesday.runs
    ADD COLUMN shard integer,
    ADD COLUMN shards integer;
