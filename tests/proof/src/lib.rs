//! Proof that the scripts keep their promises in every state of small worlds.
//!
//! `server` models the Redis commands that the scripts call. `lua` joins the shipped files as the library
//! does, and runs the scripts on the model. `kinds` has each kind's requests and the meaning of the answers;
//! `foreign` has Redisson's. `world` has clients, requests on the way, and time, and says what must hold in
//! each state. `explore` visits all states of the `worlds`. `rules` has the rules that are in no script.

pub mod explore;
pub mod foreign;
pub mod kinds;
pub mod lua;
pub mod rules;
pub mod server;
pub mod world;
pub mod worlds;
