//! End-to-end tests: real redis-server processes, real agents, dashboards, clients and a real browser.

mod agent;
mod chaos;
mod clients;
mod crowds;
mod dashboard;
mod demo;
mod documents;
mod faults;
mod figures;
mod first_steps;
mod fuzz;
mod grafana;
mod libraries;
mod lockctl;
mod packaging;
mod runbooks;
mod scripts;
mod secure;
mod settings;
mod traces;
