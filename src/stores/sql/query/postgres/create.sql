-- Makes a table unless it is in sight, which needs no right to make one then. A table without a schema's name is not made beside
-- one of another schema, which others may find by the same name: both would have the lock then. One client at a time does: of two
-- that create the same table at once, even with IF NOT EXISTS, one can fail.
--
-- {table} is its name in quotes, {plain} the same without them, {has_schema} whether a schema's is in it, {create} makes it.
--
-- Changes nothing else.
DO $$ DECLARE others text; BEGIN
    PERFORM pg_advisory_xact_lock(7094372811453);
    PERFORM 1 FROM pg_class LIMIT 1; -- what another has made meanwhile comes in sight
    IF to_regclass('{table}') IS NULL THEN
        others := (SELECT string_agg(relnamespace::regnamespace::text, ', ' ORDER BY 1) FROM pg_class
            WHERE NOT {has_schema} AND relname = '{plain}' AND relkind IN ('r', 'p', 'v') AND relpersistence <> 't');
        IF others IS NOT NULL THEN
            RAISE duplicate_table USING MESSAGE = format('there is a table %s in: %s', '{table}', others);
        END IF;
        {create};
    END IF;
END $$
