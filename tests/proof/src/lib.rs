//! Proof that the scripts keep their promises in every state of small worlds.
//!
//! `server` models the Redis commands that the scripts call; `lua` joins the shipped files as the library does,
//! and runs them on it. `kinds` has each kind's requests and the meaning of answers; `foreign` has Redisson's,
//! as overheard by a test. `world` has clients, requests on the way, and time, and says what must hold in each
//! state; `explore` visits all states of the `worlds`.

pub mod explore;
pub mod foreign;
pub mod kinds;
pub mod lua;
pub mod rules;
pub mod server;
pub mod world;
pub mod worlds;
