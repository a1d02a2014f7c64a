//! Runs scripts in Lua 5.1 on the model of the server.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value as LuaValue};

use crate::server::{Reply, Server};

pub struct Scripts {
    lua: Lua,
    functions: BTreeMap<String, Function>,
    server: Rc<RefCell<Server>>,
}

impl Scripts {
    /// Compiles the scripts. With `knows_acl` they can query the user's permissions, as from Redis 7.0 on.
    ///
    /// # Panics
    ///
    /// If a text is not valid Lua.
    #[must_use]
    pub fn new(texts: &BTreeMap<String, String>, knows_acl: bool) -> Scripts {
        let lua = Lua::new();
        let server = Rc::new(RefCell::new(Server::default()));
        let redis = lua.create_table().expect("memory");
        for (name, raises) in [("call", true), ("pcall", false)] {
            let server = Rc::clone(&server);
            let call = move |lua: &Lua, words: MultiValue| {
                let words: mlua::Result<Vec<String>> = words.iter().map(word).collect();
                let reply = server.borrow_mut().call(&words?);
                match reply {
                    Reply::Error(text) if raises => Err(mlua::Error::RuntimeError(text)),
                    reply => into_lua(lua, &reply),
                }
            };
            redis.set(name, lua.create_function(call).expect("memory")).expect("memory");
        }
        if knows_acl {
            let server = Rc::clone(&server);
            let may = move |_: &Lua, words: MultiValue| {
                let command = words.front().map(word).transpose()?;
                Ok(server.borrow().refused != command)
            };
            redis.set("acl_check_cmd", lua.create_function(may).expect("memory")).expect("memory");
        }
        lua.globals().set("redis", redis).expect("memory");
        let load = |text: &String| lua.load(text).into_function().expect("a script is no Lua");
        let functions = texts.iter().map(|(name, text)| (name.clone(), load(text))).collect();
        Scripts { lua, functions, server }
    }

    /// Runs the script of this name on `server`.
    ///
    /// # Panics
    ///
    /// If there is no such script.
    pub fn run(&self, server: &mut Server, name: &str, keys: &[String], arguments: &[String]) -> Reply {
        server.has_written = false;
        std::mem::swap(server, &mut self.server.borrow_mut());
        let globals = self.lua.globals();
        globals.set("KEYS", keys).expect("memory");
        globals.set("ARGV", arguments).expect("memory");
        let reply = match self.functions[name].call::<LuaValue>(()) {
            Ok(value) => from_lua(&value),
            Err(mlua::Error::CallbackError { cause, .. }) => match &*cause {
                mlua::Error::RuntimeError(text) => Reply::Error(text.clone()),
                other => panic!("{name}: {other}"),
            },
            Err(other) => panic!("{name}: {other}"),
        };
        std::mem::swap(server, &mut self.server.borrow_mut());
        reply
    }
}

/// The text that the server reads when a script passes this value to a command.
fn word(value: &LuaValue) -> mlua::Result<String> {
    match value {
        LuaValue::String(text) => Ok(text.to_str()?.to_owned()),
        LuaValue::Integer(number) => Ok(lua_number(*number as f64)),
        LuaValue::Number(number) => Ok(lua_number(*number)),
        other => Err(mlua::Error::RuntimeError(format!("no word of a command: {other:?}"))),
    }
}

/// The text of a number as the server writes it: an integer has no decimal point.
fn lua_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e17 { format!("{number:.0}") } else { number.to_string() }
}

fn into_lua(lua: &Lua, reply: &Reply) -> mlua::Result<LuaValue> {
    Ok(match reply {
        Reply::Nil => LuaValue::Boolean(false),
        #[allow(clippy::cast_precision_loss)]
        Reply::Number(number) => LuaValue::Number(*number as f64),
        Reply::Text(text) => LuaValue::String(lua.create_string(text)?),
        Reply::Status(text) => LuaValue::Table(one(lua, "ok", text)?),
        Reply::Error(text) => LuaValue::Table(one(lua, "err", text)?),
        Reply::Array(items) => {
            let table = lua.create_table()?;
            for (index, item) in items.iter().enumerate() {
                table.raw_set(index + 1, into_lua(lua, item)?)?;
            }
            LuaValue::Table(table)
        }
    })
}

fn one(lua: &Lua, field: &str, text: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set(field, text)?;
    Ok(table)
}

/// The server's reply for a script's result. As in Redis, a list ends at its first nil.
fn from_lua(value: &LuaValue) -> Reply {
    match value {
        LuaValue::String(text) => Reply::Text(text.to_string_lossy()),
        LuaValue::Integer(number) => Reply::Number(*number),
        #[allow(clippy::cast_possible_truncation)]
        LuaValue::Number(number) => Reply::Number(*number as i64),
        LuaValue::Boolean(true) => Reply::Number(1),
        LuaValue::Table(table) => {
            if let Ok(text) = table.raw_get::<mlua::String>("err") {
                return Reply::Error(text.to_string_lossy());
            }
            if let Ok(text) = table.raw_get::<mlua::String>("ok") {
                return Reply::Status(text.to_string_lossy());
            }
            let mut items = Vec::new();
            for index in 1.. {
                match table.raw_get::<LuaValue>(index).unwrap_or(LuaValue::Nil) {
                    LuaValue::Nil => break,
                    item => items.push(from_lua(&item)),
                }
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/stores/redis")
}

/// The texts of the library's scripts by name, such as `ACQUIRE`, joined from files as
/// `src/stores/redis/script.rs` lists them. `change` gets each file's name and text, and returns the text.
///
/// # Panics
///
/// If the list in `script.rs` cannot be parsed.
#[must_use]
pub fn load(change: &dyn Fn(&str, String) -> String) -> BTreeMap<String, String> {
    let list = fs::read_to_string(folder().join("script.rs")).expect("the list of scripts");
    let (_, rest) = list.split_once("scripts! {\n").expect("a list of scripts");
    let (lines, _) = rest.split_once("\n}\n").expect("the end of the list");
    let mut scripts = BTreeMap::new();
    for line in lines.lines() {
        let (name, files) = line.trim().trim_end_matches(';').split_once(" = ").expect("name = \"file\", …;");
        let text: String = files
            .split(", ")
            .map(|file| {
                let file = file.trim_matches('"');
                let text = fs::read_to_string(folder().join("lua").join(file)).expect(file);
                change(file, text)
            })
            .collect();
        scripts.insert(name.to_owned(), text);
    }
    assert!(scripts.len() > 20, "the list of scripts is not written as it was");
    scripts
}
