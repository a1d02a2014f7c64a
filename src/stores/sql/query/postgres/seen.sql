-- Reads what a client must know of the server and of the tables, in one statement: each further statement would cost a
-- round trip.
-- Returns one row:
--   the server process of this connection, the server's version, whether it is a standby;
--   of the table of locks that the search path finds: schema, name, tables of that name in other schemas, comment;
--   whether the table of clients exists, whether the wait queue's table exists;
--   whether the user needs no more rights: may use the wait queue's table, or may not take locks anyway;
--   the schemas of the search path.
SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery(),
    n.nspname, c.relname, (
        SELECT string_agg(other.relnamespace::regnamespace::text || '.' || quote_ident(other.relname), E'\n' ORDER BY 1)
        FROM pg_class AS other WHERE other.relname = c.relname AND other.oid <> c.oid
            AND other.relkind IN ('r', 'p', 'v') AND other.relpersistence <> 't'
    ), obj_description(c.oid, 'pg_class'), clients IS NOT NULL, queue IS NOT NULL, (
        SELECT NOT has_table_privilege(c.oid, 'UPDATE') OR bool_and(has_table_privilege(queue, word))
        FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS word
    ), array_to_string(current_schemas(false), ', ')
FROM (SELECT) AS always LEFT JOIN pg_class AS c ON c.oid = to_regclass('leasehold_locks')
    LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (SELECT
        to_regclass(quote_ident(n.nspname) || '.' || quote_ident(c.relname || '_clients')) AS clients,
        to_regclass(quote_ident(n.nspname) || '.' || quote_ident(c.relname || '_wait_queue')) AS queue
    ) AS beside ON true
