//! Schemas of JSON whose type has a different shape than the type from which it is made.

use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// Returns the schema of a string that is one of these words.
pub(crate) fn words(words: impl IntoIterator<Item = &'static str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

/// Gives a type the schema of the type that it serializes as.
macro_rules! schema_of {
    ($shown:ty => $json:ty) => {
        impl utoipa::PartialSchema for $shown {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                <$json as utoipa::PartialSchema>::schema()
            }
        }

        impl utoipa::ToSchema for $shown {
            fn name() -> std::borrow::Cow<'static, str> {
                <$json as utoipa::ToSchema>::name()
            }

            fn schemas(
                schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>,
            ) {
                <$json as utoipa::ToSchema>::schemas(schemas);
            }
        }
    };
}

pub(crate) use schema_of;
