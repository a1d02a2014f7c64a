-- Creates a table unless the search path finds it, so that a user without the right to create tables can use an existing
-- one. If the table's name has no schema, and another schema has a table of that name, the statement fails: otherwise some
-- clients would find one table and some the other, and two clients could hold the same lock. The advisory lock lets one
-- client at a time create tables, since even with IF NOT EXISTS one of two simultaneous clients can fail.
--
-- {table} is the quoted name, {plain} the name without quotes, {has_schema} whether it contains a schema, {create} the
-- CREATE TABLE statement.
--
-- Changes nothing else.
DO $$ DECLARE others text; BEGIN
    PERFORM pg_advisory_xact_lock(7094372811453);
    PERFORM 1 FROM pg_class LIMIT 1; -- renews the session's cache: another client may have created the table
    IF to_regclass('{table}') IS NULL THEN
        others := (SELECT string_agg(relnamespace::regnamespace::text, ', ' ORDER BY 1) FROM pg_class
            WHERE NOT {has_schema} AND relname = '{plain}' AND relkind IN ('r', 'p', 'v') AND relpersistence <> 't');
        IF others IS NOT NULL THEN
            RAISE duplicate_table USING MESSAGE = format('there is a table %s in: %s', '{table}', others);
        END IF;
        {create};
    END IF;
END $$
