-- The rights of server and worker on PostgreSQL: they read and write rows but never change the schema; the worker cannot read
-- tokens. Run this after every migration, as the role that runs `stablessm migrate` and may create roles. It is safe to repeat:
--   SERVER_PASSWORD=... WORKER_PASSWORD=... psql --file postgres-roles.sql postgresql://owner@host/stablessm
\set ON_ERROR_STOP on
\set QUIET on
\if :{?server} \else \set server stablessm_server
\endif
\if :{?worker} \else \set worker stablessm_worker
\endif
\if :{?backup} \else \set backup stablessm_backup
\endif
\getenv server_password SERVER_PASSWORD
\getenv worker_password WORKER_PASSWORD
\getenv backup_password BACKUP_PASSWORD
BEGIN;
SELECT format('CREATE ROLE %I', name) FROM unnest(ARRAY[:'server', :'worker']) AS name
    WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE :"server" LOGIN NOCREATEDB NOCREATEROLE PASSWORD :'server_password';
ALTER ROLE :"worker" LOGIN NOCREATEDB NOCREATEROLE PASSWORD :'worker_password';

REVOKE ALL ON DATABASE :"DBNAME" FROM PUBLIC, :"server", :"worker";
GRANT CONNECT ON DATABASE :"DBNAME" TO :"server", :"worker";
REVOKE ALL ON SCHEMA public FROM PUBLIC, :"server", :"worker";
GRANT USAGE ON SCHEMA public TO :"server", :"worker";
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, :"server", :"worker";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, :"server", :"worker";

-- every table is named, so a new table is inaccessible until it is added here
GRANT SELECT ON alembic_version TO :"server", :"worker";
GRANT SELECT, INSERT, UPDATE, DELETE ON alerts, blocks, checkpoints, queues, rungs, runs, searches, series, sweeps, transitions, workers
    TO :"server";
GRANT SELECT, INSERT, UPDATE, DELETE ON audit, ended_sessions, notifications, silences, tokens, users, views, webhooks TO :"server";
GRANT SELECT, INSERT, UPDATE, DELETE ON alerts, blocks, checkpoints, series, transitions, workers TO :"worker";
GRANT SELECT, INSERT, UPDATE, DELETE ON autopsies, run_logs, tracebacks TO :"server", :"worker";
GRANT SELECT, UPDATE ON queues, runs TO :"worker";
GRANT SELECT, INSERT, DELETE ON deleted_runs TO :"server";
GRANT SELECT, INSERT ON installation TO :"server", :"worker";
GRANT SELECT ON deleted_runs, sweeps TO :"worker";
-- only the limit of a user's running runs, which a claim locks; no names
GRANT SELECT (id, max_running), UPDATE (max_running) ON users TO :"worker";
GRANT USAGE ON SEQUENCE alerts_id_seq TO :"server", :"worker";
GRANT USAGE ON SEQUENCE audit_id_seq, ended_sessions_id_seq, runs_id_seq, sweeps_id_seq, tokens_id_seq, users_id_seq,
    views_id_seq, webhooks_id_seq, notifications_id_seq, silences_id_seq TO :"server";
-- for scheduled backups, if a password for their role is given: the role reads everything and writes nothing
\if :{?backup_password}
SELECT format('CREATE ROLE %I', :'backup') WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'backup') \gexec
ALTER ROLE :"backup" LOGIN NOCREATEDB NOCREATEROLE PASSWORD :'backup_password';
GRANT CONNECT ON DATABASE :"DBNAME" TO :"backup";
GRANT USAGE ON SCHEMA public TO :"backup";
GRANT SELECT ON ALL TABLES IN SCHEMA public TO :"backup";
GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO :"backup";
\endif
COMMIT;
