//! The languages of transcripts: their codes and names.

use crate::serving::error::{ApiError, clip};

/// Languages with the codes that clients send (ISO 639).
const LANGUAGES: &[(&str, &str)] = &[
    ("af", "Afrikaans"),
    ("am", "Amharic"),
    ("ar", "Arabic"),
    ("as", "Assamese"),
    ("az", "Azerbaijani"),
    ("ba", "Bashkir"),
    ("be", "Belarusian"),
    ("bg", "Bulgarian"),
    ("bn", "Bengali"),
    ("bo", "Tibetan"),
    ("br", "Breton"),
    ("bs", "Bosnian"),
    ("ca", "Catalan"),
    ("cs", "Czech"),
    ("cy", "Welsh"),
    ("da", "Danish"),
    ("de", "German"),
    ("el", "Greek"),
    ("en", "English"),
    ("es", "Spanish"),
    ("et", "Estonian"),
    ("eu", "Basque"),
    ("fa", "Persian"),
    ("fi", "Finnish"),
    ("fil", "Filipino"),
    ("fo", "Faroese"),
    ("fr", "French"),
    ("gl", "Galician"),
    ("gu", "Gujarati"),
    ("ha", "Hausa"),
    ("haw", "Hawaiian"),
    ("he", "Hebrew"),
    ("hi", "Hindi"),
    ("hr", "Croatian"),
    ("ht", "Haitian Creole"),
    ("hu", "Hungarian"),
    ("hy", "Armenian"),
    ("id", "Indonesian"),
    ("is", "Icelandic"),
    ("it", "Italian"),
    ("ja", "Japanese"),
    ("jw", "Javanese"),
    ("ka", "Georgian"),
    ("kk", "Kazakh"),
    ("km", "Khmer"),
    ("kn", "Kannada"),
    ("ko", "Korean"),
    ("la", "Latin"),
    ("lb", "Luxembourgish"),
    ("ln", "Lingala"),
    ("lo", "Lao"),
    ("lt", "Lithuanian"),
    ("lv", "Latvian"),
    ("mg", "Malagasy"),
    ("mi", "Maori"),
    ("mk", "Macedonian"),
    ("ml", "Malayalam"),
    ("mn", "Mongolian"),
    ("mr", "Marathi"),
    ("ms", "Malay"),
    ("mt", "Maltese"),
    ("my", "Myanmar"),
    ("ne", "Nepali"),
    ("nl", "Dutch"),
    ("nn", "Nynorsk"),
    ("no", "Norwegian"),
    ("oc", "Occitan"),
    ("pa", "Punjabi"),
    ("pl", "Polish"),
    ("ps", "Pashto"),
    ("pt", "Portuguese"),
    ("ro", "Romanian"),
    ("ru", "Russian"),
    ("sa", "Sanskrit"),
    ("sd", "Sindhi"),
    ("si", "Sinhala"),
    ("sk", "Slovak"),
    ("sl", "Slovenian"),
    ("sn", "Shona"),
    ("so", "Somali"),
    ("sq", "Albanian"),
    ("sr", "Serbian"),
    ("su", "Sundanese"),
    ("sv", "Swedish"),
    ("sw", "Swahili"),
    ("ta", "Tamil"),
    ("te", "Telugu"),
    ("tg", "Tajik"),
    ("th", "Thai"),
    ("tk", "Turkmen"),
    ("tl", "Tagalog"),
    ("tr", "Turkish"),
    ("tt", "Tatar"),
    ("uk", "Ukrainian"),
    ("ur", "Urdu"),
    ("uz", "Uzbek"),
    ("vi", "Vietnamese"),
    ("yi", "Yiddish"),
    ("yo", "Yoruba"),
    ("yue", "Cantonese"),
    ("zh", "Chinese"),
];

/// The languages that Qwen 3 ASR names.
pub(super) const OF_QWEN_3_ASR: &[&str] = &[
    "ar", "yue", "zh", "cs", "da", "nl", "en", "fil", "fi", "fr", "de", "el", "hi", "hu", "id", "it", "ja", "ko", "mk",
    "ms", "fa", "pl", "pt", "ro", "ru", "es", "sv", "th", "tr", "vi",
];

/// The name of a language by its code.
pub(super) fn name_of(code: &str) -> Option<&'static str> {
    LANGUAGES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

/// The name of a language in lower case, as OpenAI's API has it, or its code if it has no name here.
pub(crate) fn language_name(code: &str) -> String {
    name_of(code).map_or_else(|| code.to_owned(), str::to_lowercase)
}

/// The code, among those that a model knows, of a language that is given by its code or its name.
///
/// # Errors
/// [`ApiError::InvalidRequest`] with the codes that the model knows.
pub(super) fn code_of<'a>(language: &str, known: &[&'a str]) -> Result<&'a str, ApiError> {
    let is_language = |code: &&&str| {
        let names = [Some(**code), name_of(code)];
        names.into_iter().flatten().any(|name| name.eq_ignore_ascii_case(language))
    };
    known.iter().find(is_language).copied().ok_or_else(|| {
        let (language, codes) = (clip(language), known.join(", "));
        let message = format!("`language` is {language}, which this model does not know; it knows {codes}");
        ApiError::invalid("language", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_those_of_qwen_have_names() {
        assert!(LANGUAGES.is_sorted());
        assert!(OF_QWEN_3_ASR.iter().all(|code| name_of(code).is_some()));
    }

    #[test]
    fn a_language_is_found_by_its_code_or_name() {
        for language in ["de", "German", "gERMAN"] {
            assert_eq!(code_of(language, &["en", "de"]).expect("it is known"), "de");
        }
        // Whisper may know a code that has no name here.
        assert_eq!(code_of("xx", &["xx"]).expect("it is known"), "xx");
        let error = code_of("fr", &["en", "de"]).expect_err("it is not known").to_string();
        assert!(error.contains("`language`") && error.contains("en, de"), "{error}");
    }
}
