//! Runs the shipped Lua scripts as Redis runs them: Lua 5.1, `redis.call`, `redis.pcall`, `KEYS` and `ARGV`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value as LuaValue};
use redisson::script::{Args, Call, Script, Value};

use super::commands::{Commands, Reply};
use super::{Redis, Served};

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("Lua starts");
}

/// Runs one script on a server.
///
/// # Panics
///
/// Panics if the script fails in any other way than by a command that the server refuses: that is a bug in the script.
pub(super) fn run(redis: &mut Redis, call: &Call) -> Served {
    INTERPRETER.with(|interpreter| interpreter.run(redis, call))
}

/// A Lua state with the scripts compiled so far.
struct Interpreter {
    lua: Lua,
    globals: Table,
    /// The commands of the script that is running. Lua functions reach the server through it.
    commands: Rc<RefCell<Commands>>,
    compiled: RefCell<HashMap<&'static str, Function>>,
}

impl Interpreter {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let globals = lua.globals();
        let commands = Rc::new(RefCell::new(Commands::default()));
        let redis = lua.create_table()?;
        let shared = Rc::clone(&commands);
        redis.set(
            "call",
            lua.create_function(move |lua, args| {
                let mut commands = shared.borrow_mut();
                match commands.run(&words(args)?) {
                    Ok(reply) => to_lua(lua, &reply),
                    Err(refusal) => {
                        commands.raised = Some(refusal);
                        Err(mlua::Error::runtime(refusal.text()))
                    }
                }
            })?,
        )?;
        let shared = Rc::clone(&commands);
        redis.set(
            "pcall",
            lua.create_function(move |lua, args| match shared.borrow_mut().run(&words(args)?) {
                Ok(reply) => to_lua(lua, &reply),
                Err(refusal) => {
                    let error = lua.create_table()?;
                    error.raw_set("err", refusal.text())?;
                    Ok(LuaValue::Table(error))
                }
            })?,
        )?;
        globals.set("redis", redis)?;
        // As in Redis, a script can neither create a global variable nor read one that does not exist.
        lua.load(
            "local refuse = function(_, name) error('no global variable ' .. tostring(name), 2) end
            setmetatable(_G, {__index = refuse, __newindex = refuse})",
        )
        .exec()?;
        Ok(Self { lua, globals, commands, compiled: RefCell::default() })
    }

    fn run(&self, redis: &mut Redis, call: &Call) -> Served {
        self.commands.replace(Commands::new(std::mem::take(redis)));
        let result = self.evaluate(call);
        let commands = self.commands.take();
        *redis = commands.redis;
        let reply = match (result, commands.raised) {
            (Ok(reply), _) => reply,
            (Err(_), Some(refusal)) => Err(refusal.text().to_owned()),
            (Err(error), None) => panic!("the script {} failed: {error}", call.script.name),
        };
        Served { reply, published: commands.published }
    }

    /// Returns the reply, or the error that the script returns as one.
    fn evaluate(&self, call: &Call) -> mlua::Result<Result<Value, String>> {
        self.globals.raw_set("KEYS", self.list(&call.keys)?)?;
        self.globals.raw_set("ARGV", self.list(&call.args)?)?;
        let result = self.function(call.script)?.call(())?;
        if let LuaValue::Table(table) = &result
            && let Some(error) = table.raw_get::<Option<String>>("err")?
        {
            return Ok(Err(error));
        }
        from_lua(&result).map(Ok)
    }

    fn list(&self, args: &Args) -> mlua::Result<Table> {
        let list = self.lua.create_table_with_capacity(args.len(), 0)?;
        for arg in args.iter() {
            list.raw_push(self.lua.create_string(arg)?)?;
        }
        Ok(list)
    }

    fn function(&self, script: &'static Script) -> mlua::Result<Function> {
        if let Some(function) = self.compiled.borrow().get(script.sha()) {
            return Ok(function.clone());
        }
        let chunk = self.lua.load(script.source).set_name(script.name);
        let function = chunk.into_function()?;
        self.compiled.borrow_mut().insert(script.sha(), function.clone());
        Ok(function)
    }
}

/// Converts the arguments of `redis.call`, as Redis does: strings as they are, numbers as text.
fn words(args: MultiValue) -> mlua::Result<Vec<String>> {
    args.into_iter()
        .map(|arg| match arg {
            LuaValue::String(text) => Ok(text.to_str()?.to_owned()),
            LuaValue::Integer(n) => Ok(n.to_string()),
            LuaValue::Number(n) => Ok(n.to_string()),
            other => Err(mlua::Error::runtime(format!(
                "Lua redis lib command arguments must be strings or integers, not {}",
                other.type_name()
            ))),
        })
        .collect()
}

/// Converts a command's reply to Lua, as Redis does.
fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<LuaValue> {
    Ok(match reply {
        Reply::Nil => LuaValue::Boolean(false),
        Reply::Int(n) => LuaValue::Integer(*n),
        Reply::Bulk(text) => LuaValue::String(lua.create_string(text)?),
        Reply::Status(text) => {
            let status = lua.create_table_with_capacity(0, 1)?;
            status.raw_set("ok", *text)?;
            LuaValue::Table(status)
        }
        Reply::Array(items) => {
            let array = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                array.raw_push(to_lua(lua, item)?)?;
            }
            LuaValue::Table(array)
        }
    })
}

/// Converts a script's result to a reply, as Redis does: numbers are truncated, and an array ends at its first nil.
fn from_lua(result: &LuaValue) -> mlua::Result<Value> {
    Ok(match result {
        LuaValue::Nil | LuaValue::Boolean(false) => Value::Nil,
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Integer(n) => Value::Int(*n),
        #[expect(clippy::cast_possible_truncation, reason = "Redis truncates")]
        LuaValue::Number(n) => Value::Int(*n as i64),
        LuaValue::String(text) => Value::Bytes(text.as_bytes().to_vec()),
        LuaValue::Table(table) => {
            let items = table.sequence_values().map(|item| from_lua(&item?));
            Value::Array(items.collect::<mlua::Result<_>>()?)
        }
        other => return Err(mlua::Error::runtime(format!("a reply of {}", other.type_name()))),
    })
}
