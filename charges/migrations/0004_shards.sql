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

-- Every run reads it. Whoever may work on periods was granted that before there
-- was this table, and must not stand before a closed door after an upgrade.
DO $$
DECLARE
    known record;
BEGIN
    FOR known IN
        SELECT privilege_type, grantee
        FROM pg_class, aclexplode(relacl)
        WHERE oid = 'duesday.periods'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON duesday.shard_cursors TO %s', known.privilege_type,
            CASE known.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(known.grantee)) END);
    END LOOP;
    -- An upgrade may be another role's than the first migration.
    EXECUTE format('ALTER TABLE duesday.shard_cursors OWNER TO %I',
        (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'duesday.periods'::regclass));
END $$;

-- Null: the run has the period alone.
ALTER TABLE duesday.runs
    ADD COLUMN shard integer,
    ADD COLUMN shards integer;
