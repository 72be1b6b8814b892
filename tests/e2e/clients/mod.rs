//! Real client programs and libraries, unchanged, on the agent's socket: the settings that they need, their behaviour
//! without these, and the programs of the documents as printed.

mod commands;
mod driver;
pub(crate) mod libraries;
mod programs;
mod recipes;
pub(crate) mod relay;
mod scenes;

use anyhow::Result;

#[tokio::test]
async fn redis_py() -> Result<()> {
    scenes::play(&libraries::REDIS_PY).await
}

#[tokio::test]
async fn redis_py_asyncio() -> Result<()> {
    scenes::play(&libraries::REDIS_PY_ASYNCIO).await
}

#[tokio::test]
async fn ioredis() -> Result<()> {
    scenes::play(&libraries::IOREDIS).await
}

#[tokio::test]
async fn node_redis() -> Result<()> {
    scenes::play(&libraries::NODE_REDIS).await
}

#[tokio::test]
async fn go_redis() -> Result<()> {
    scenes::play(&libraries::GO_REDIS).await
}

#[tokio::test]
async fn lettuce() -> Result<()> {
    scenes::play(&libraries::LETTUCE).await
}

#[tokio::test]
async fn jedis() -> Result<()> {
    scenes::play(&libraries::JEDIS).await
}

#[tokio::test]
async fn lettuce_that_gives_up() -> Result<()> {
    scenes::lettuce_gives_up().await
}

#[tokio::test]
async fn jeopardy_by_events_and_pushes() -> Result<()> {
    scenes::jeopardy_is_reported().await
}
