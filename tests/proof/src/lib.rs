//! Proof that the scripts do what they are for, in every state that a small world can get into.
//!
//! `server` is a model of the Redis commands that the scripts call, `lua` runs the shipped files over it,
//! `scripts` puts them together as the library does. `kinds` says what is sent for each kind of lock and what
//! an answer means. `foreign` has the same of Redisson, as far as a test has overheard it. `world` has
//! clients, their requests on the way, and time, and says what must hold in each state; `explore` goes
//! through all that can happen in it, and `worlds` are those that it goes through.

pub mod explore;
pub mod foreign;
pub mod kinds;
pub mod lua;
pub mod rules;
pub mod scripts;
pub mod server;
pub mod world;
pub mod worlds;
