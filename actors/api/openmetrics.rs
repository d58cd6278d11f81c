//! Prometheus' text format converted to OpenMetrics 1.0.
//!
//! The recorder renders the older format only. OpenMetrics differs in the names of counter families (without `_total`), the
//! type `unknown`, the numbers of bucket edges, the quotes in help texts, and the end mark.

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Converts a scrape in Prometheus' text format.
pub(super) fn from_prometheus(text: &str) -> String {
    let counters: Vec<&str> = text.lines().filter_map(counter_family).collect();
    let mut converted = String::with_capacity(text.len() + 6);
    for line in text.lines().filter(|line| !line.is_empty()) {
        converted.push_str(&convert(line, &counters));
        converted.push('\n');
    }
    converted.push_str("# EOF\n");
    converted
}

/// The name in a `# TYPE name counter` line.
fn counter_family(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.strip_suffix(" counter")
}

fn convert(line: &str, counters: &[&str]) -> String {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
        return format!("# HELP {} {}", family(name, counters), help.replace('"', "\\\""));
    }
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
        let kind = if kind == "untyped" { "unknown" } else { kind };
        return format!("# TYPE {} {kind}", family(name, counters));
    }
    sample(line, counters)
}

/// The name of a metric's family: a counter's family has no `_total`.
fn family<'a>(name: &'a str, counters: &[&str]) -> &'a str {
    if counters.contains(&name) { name.strip_suffix("_total").unwrap_or(name) } else { name }
}

/// A sample. A counter's sample ends in `_total`, and a bucket's edge is a decimal number.
fn sample(line: &str, counters: &[&str]) -> String {
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    let rest = &line[name.len()..];
    if counters.contains(&name) && !name.ends_with("_total") {
        return format!("{name}_total{rest}");
    }
    match rest.rsplit_once("le=\"").and_then(|(before, after)| Some((before, after.split_once('"')?))) {
        Some((before, (edge, after)))
            if name.ends_with("_bucket") && edge.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{name}{before}le=\"{edge}.0\"{after}")
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_samples_and_the_end_follow_the_specification() {
        let prometheus = "# HELP a_total Says \"a\".\n# TYPE a_total counter\na_total{x=\"1\"} 3\n\n\
                          # TYPE b counter\nb 4\n\n# TYPE c untyped\nc 5\n\n\
                          # HELP d Time.\n# TYPE d histogram\nd_bucket{m=\"le\",le=\"1\"} 1\nd_bucket{le=\"2.5\"} 1\n\
                          d_bucket{le=\"+Inf\"} 1\nd_sum 1\nd_count 1\n";
        let open = "# HELP a Says \\\"a\\\".\n# TYPE a counter\na_total{x=\"1\"} 3\n\
                    # TYPE b counter\nb_total 4\n# TYPE c unknown\nc 5\n\
                    # HELP d Time.\n# TYPE d histogram\nd_bucket{m=\"le\",le=\"1.0\"} 1\nd_bucket{le=\"2.5\"} 1\n\
                    d_bucket{le=\"+Inf\"} 1\nd_sum 1\nd_count 1\n# EOF\n";
        assert_eq!(from_prometheus(prometheus), open);
    }
}
