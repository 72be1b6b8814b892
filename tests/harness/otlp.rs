//! A receiver of spans: OpenTelemetry's protobuf service over gRPC and HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Attributes by name, values as text.
pub type Attributes = BTreeMap<String, String>;

/// A span as it was received; ids in hex.
#[derive(Debug, Clone)]
pub struct SeenSpan {
    /// The name of the span.
    pub name: String,
    pub trace: String,
    /// Its id.
    pub id: String,
    /// Its parent's; empty for a root.
    pub parent: String,
    /// The number of its kind in OTLP: 1 internal, 2 server, 3 client.
    pub kind: i32,
    pub attributes: Attributes,
    /// The attributes of the process that sent it.
    pub resource: Attributes,
    /// The names of its events.
    pub events: Vec<(String, Attributes)>,
    /// The ids of the spans that it links to.
    pub links: Vec<String>,
    /// Its duration in nanoseconds.
    pub nanos: u64,
    /// True if it ended in an error.
    pub failed: bool,
}

impl SeenSpan {
    /// Returns an attribute; empty if there is none of that name.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

type Seen = Arc<Mutex<Vec<SeenSpan>>>;

/// A receiver of spans on two ports of 127.0.0.1. It ends when dropped.
#[derive(Debug)]
pub struct SpanReceiver {
    grpc: u16,
    http: u16,
    seen: Seen,
    servers: Vec<tokio::task::JoinHandle<()>>,
}

impl SpanReceiver {
    /// Starts the receiver.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    pub async fn start() -> Result<Self> {
        let seen = Seen::default();
        let (grpc, http) =
            (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
        let ports = (grpc.local_addr()?.port(), http.local_addr()?.port());
        let service = TraceServiceServer::new(Service(Arc::clone(&seen)));
        let grpc = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(grpc));
        let router =
            axum::Router::new().route("/v1/traces", post(posted)).with_state(Arc::clone(&seen));
        // They end when this value is dropped, and a test that misses spans reports it.
        let servers = vec![
            tokio::spawn(async move {
                grpc.await.ok();
            }),
            tokio::spawn(async move {
                axum::serve(http, router).await.ok();
            }),
        ];
        Ok(Self { grpc: ports.0, http: ports.1, seen, servers })
    }

    /// Returns the gRPC endpoint.
    #[must_use]
    pub fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// Returns the HTTP endpoint.
    #[must_use]
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Returns all spans received so far.
    #[must_use]
    pub fn spans(&self) -> Vec<SeenSpan> {
        self.seen.lock().clone()
    }

    /// Returns the spans of one name that concern one lock.
    #[must_use]
    pub fn about(&self, name: &str, lock: &str) -> Vec<SeenSpan> {
        let mut spans = self.spans();
        spans.retain(|span| span.name == name && span.attribute("lock.name") == lock);
        spans
    }
}

impl Drop for SpanReceiver {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}

struct Service(Seen);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        take(&self.0, request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn posted(State(seen): State<Seen>, body: Bytes) -> (StatusCode, Vec<u8>) {
    match ExportTraceServiceRequest::decode(body) {
        Ok(request) => {
            take(&seen, request);
            (StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec())
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string().into_bytes()),
    }
}

fn take(seen: &Seen, request: ExportTraceServiceRequest) {
    let mut seen = seen.lock();
    for sent in request.resource_spans {
        let resource = attributes(sent.resource.map(|r| r.attributes).unwrap_or_default());
        let spans = sent.scope_spans.into_iter().flat_map(|scope| scope.spans);
        seen.extend(spans.map(|span| read(span, &resource)));
    }
}

fn read(span: Span, resource: &Attributes) -> SeenSpan {
    SeenSpan {
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind,
        attributes: attributes(span.attributes),
        resource: resource.clone(),
        events: span.events.into_iter().map(|e| (e.name, attributes(e.attributes))).collect(),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        nanos: span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano),
        failed: span.status.is_some_and(|status| status.code == 2),
    }
}

fn attributes(given: Vec<KeyValue>) -> Attributes {
    given.into_iter().map(|KeyValue { key, value, .. }| (key, text(value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
