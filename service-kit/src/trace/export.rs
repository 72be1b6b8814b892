//! The export of spans: queue, exporter, and their runtime.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use tokio::runtime::Runtime;

use super::count::{Counted, Gate};
use super::endpoint::Endpoint;
use super::queue;
use super::sampling::Sampling;

/// The program that the spans belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// A running export, until it is [finished](Self::finish).
#[derive(Debug)]
pub(crate) struct Exporting {
    provider: SdkTracerProvider,
    /// The runtime of the exporter's connections, apart from the program's own threads.
    runtime: Runtime,
    sampling: Sampling,
    shown: (String, &'static str),
}

impl Exporting {
    /// Starts the export that the `OTEL_*` variables configure. Returns `None` if they name no endpoint.
    ///
    /// # Errors
    ///
    /// An invalid variable with the reason, or a failure to create the runtime or the exporter.
    pub(crate) fn from_env(program: Program) -> Result<Option<Self>, String> {
        let env = |name: &str| std::env::var(name).ok();
        let Some((endpoint, room)) = settings(&env)? else { return Ok(None) };
        let (runtime, exporter) = exporter(&endpoint)?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Counted::new(
            exporter,
            runtime.handle().clone(),
            Arc::clone(&waiting),
            endpoint.patience(),
        );
        let config = BatchConfigBuilder::default().with_max_queue_size(room).build();
        let batches = BatchSpanProcessor::builder(counted).with_batch_config(config).build();
        let sampling = endpoint.sampling();
        let provider = SdkTracerProvider::builder()
            // Spans of traces that are not sampled are never created.
            .with_sampler(Sampler::AlwaysOn)
            .with_id_generator(sampling.ids())
            .with_resource(resource(program, env("OTEL_SERVICE_NAME")))
            .with_span_processor(Gate::new(batches, waiting, room))
            .build();
        Ok(Some(Self { provider, runtime, sampling, shown: endpoint.shown() }))
    }

    pub(crate) fn tracer(&self) -> SdkTracer {
        self.provider.tracer("lockscope")
    }

    /// Enables the creation of spans.
    pub(crate) fn begin(&self) {
        super::begin(self.sampling);
    }

    /// Returns the URL and the protocol for a log line.
    pub(crate) fn shown(&self) -> (&str, &str) {
        (&self.shown.0, self.shown.1)
    }

    /// Sends the queued spans, for `grace` at most.
    pub(crate) fn finish(self, grace: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(grace) {
            tracing::warn!(%error, "the last spans were not sent");
        }
        self.runtime.shutdown_background();
    }
}

/// Reads the variables: the receiver, and the number of spans that may be queued.
fn settings(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<(Endpoint, usize)>, String> {
    let Some(endpoint) = Endpoint::from_env(env)? else { return Ok(None) };
    Ok(Some((endpoint, queue::room_from_env(env)?)))
}

/// Creates the exporter with a runtime for its connections. It connects when it sends.
fn exporter(endpoint: &Endpoint) -> Result<(Runtime, SpanExporter), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the tracing runtime: {error}"))?;
    let exporter = {
        let _entered = runtime.enter();
        endpoint.exporter()?
    };
    Ok((runtime, exporter))
}

/// Checks everything that [`Exporting::from_env`] reads: the variables, and the file of authorities that they name. Nothing is sent.
///
/// # Errors
///
/// As of [`Exporting::from_env`].
pub(crate) fn check(env: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    if let Some((endpoint, _)) = settings(env)? {
        let (runtime, exporter) = exporter(&endpoint)?;
        drop(exporter);
        runtime.shutdown_background();
    }
    Ok(())
}

/// Returns the resource of all spans. The variables override the program's own values.
fn resource(program: Program, name: Option<String>) -> Resource {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", program.name),
            KeyValue::new("service.version", program.version),
            KeyValue::new("host.name", host),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()));
    match name.filter(|name| !name.is_empty()) {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}
