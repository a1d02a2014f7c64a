-- Reads why the server keeps old versions of rows: the oldest transaction that has been open for longer than an age, and
-- the length of the history list, if the list is long.
--
-- :age_ms
-- Returns a row with an explanation for each.
(
    SELECT CONCAT('a transaction of the session ', trx_mysql_thread_id, ' is open since ',
        TIMESTAMPDIFF(SECOND, trx_started, NOW()), ' s')
    FROM information_schema.innodb_trx
    WHERE trx_started <= NOW() - INTERVAL :age_ms DIV 1000 SECOND AND trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
    ORDER BY trx_started LIMIT 1
)
UNION ALL
SELECT CONCAT('the history list has ', COUNT, ' entries') FROM information_schema.innodb_metrics
WHERE NAME = 'trx_rseg_history_len' AND COUNT > 100000
