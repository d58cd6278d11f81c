//! The address of a server on the command line.

use reqwest::Url;

/// The root of a server: without the `/v1` that clients of OpenAI's API have, and with `http://` where a text has no scheme.
/// `None` if the text is not an address.
#[must_use]
pub fn parse(text: &str) -> Option<Url> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let mut url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/v1").unwrap_or(path).to_owned();
    url.set_path(&path);
    url.set_query(None);
    url.set_fragment(None);
    Some(url)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_the_path_of_the_api_and_need_not_have_a_scheme() {
        for (text, url) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/"),
            ("https://example.com/models/v1?x#y", "https://example.com/models"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("localhost:8080/v1", "http://localhost:8080/"),
            ("box", "http://box/"),
        ] {
            assert_eq!(parse(text).unwrap().as_str(), url);
        }
        for wrong in ["ftp://a", "", "http://"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
