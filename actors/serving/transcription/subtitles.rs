//! Texts with times as files of subtitles.

/// A text that is shown for some time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cue {
    /// Seconds.
    pub start: f64,
    pub end: f64,
    pub text: String,
}

/// A file of SubRip.
pub(crate) fn srt(cues: impl IntoIterator<Item = Cue>) -> String {
    let entry = |(index, Cue { start, end, text }): (usize, Cue)| {
        format!("{}\n{} --> {}\n{}\n\n", index + 1, time(start, ','), time(end, ','), text.trim())
    };
    cues.into_iter().enumerate().map(entry).collect()
}

/// A file of the web (WebVTT).
pub(crate) fn vtt(cues: impl IntoIterator<Item = Cue>) -> String {
    let entry = |Cue { start, end, text }: Cue| {
        // An arrow would be read as times.
        format!("{} --> {}\n{}\n\n", time(start, '.'), time(end, '.'), text.trim().replace("-->", "->"))
    };
    "WEBVTT\n\n".to_owned() + &cues.into_iter().map(entry).collect::<String>()
}

/// `00:01:02.345`.
fn time(seconds: f64, point: char) -> String {
    let all = (seconds * 1000.0).round() as u64;
    let (hours, minutes) = (all / 3_600_000, all / 60_000 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{point}{:03}", all / 1000 % 60, all % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtitles_have_numbers_and_times() {
        let cues = [(0.0, 1.5, " One."), (61.02, 3723.4, " Two --> three.")];
        let cues = cues.map(|(start, end, text)| Cue { start, end, text: text.to_owned() });
        assert_eq!(
            srt(cues.clone()),
            "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n00:01:01,020 --> 01:02:03,400\nTwo --> three.\n\n"
        );
        assert_eq!(
            vtt(cues),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n00:01:01.020 --> 01:02:03.400\nTwo -> three.\n\n"
        );
    }
}
