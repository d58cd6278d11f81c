//! Flags made from the table of settings. A `clap` command flattens those of the sections that it uses.

use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::environment::Environment;
use super::error::{Given, Origin};
use super::settings::{Config, SETTINGS, Section, Setting};
use super::value::{Raw, ValueKind};

/// Sections as a type, so that a command can name the flags that it accepts.
pub trait FlagSections {
    /// The sections, in the order of the help.
    const SECTIONS: &'static [Section];
    /// Whether the flags may also follow a subcommand.
    const GLOBAL: bool = false;
}

/// Declares a [`FlagSections`] for some sections.
macro_rules! flag_sections {
    ($($(#[doc = $doc:literal])+ $name:ident = [$($section:ident),+], global = $global:literal;)+) => { $(
        $(#[doc = $doc])+
        #[derive(Debug, Clone)]
        pub struct $name;
        impl FlagSections for $name {
            const SECTIONS: &'static [Section] = &[$(Section::$section),+];
            const GLOBAL: bool = $global;
        }
    )+ };
}

flag_sections! {
    /// The flags of `cuelight run`.
    RunFlags = [Sampling, Tools, Model, Hub], global = false;
    /// The flags of `cuelight serve`.
    ServeFlags = [Server, Model, Hub], global = false;
    /// The flags of commands that plan or load a model by all of its settings.
    ModelFlags = [Model, Hub], global = false;
    /// The flags of other commands that need a model.
    HubFlags = [Hub], global = false;
    /// The flags of all commands.
    OutputFlags = [Output], global = true;
    /// The flags of all sections that are not those of all commands.
    AllFlags = [Model, Server, Sampling, Tools, Hub], global = false;
}

/// The flags of some sections that were given.
#[derive(Debug, Clone)]
pub struct Flags<S> {
    given: Given,
    section: PhantomData<S>,
}

impl<S> Flags<S> {
    /// The values.
    #[must_use]
    pub fn given(&self) -> Given {
        self.given.clone()
    }
}

/// The settings in the order of the help: clap shows headings in the order of their first flags, and "Advanced" is the last.
fn settings_of<S: FlagSections>() -> impl Iterator<Item = &'static Setting> {
    let of = |section: &'static Section| {
        SETTINGS.iter().filter(move |setting| setting.section == *section && setting.has_flag)
    };
    let all =
        move |is_advanced| S::SECTIONS.iter().flat_map(of).filter(move |setting| setting.is_advanced == is_advanced);
    all(false).chain(all(true))
}

impl<S: FlagSections> clap::Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        // The help shows the defaults of a user without any XDG variables.
        let defaults = Config::defaults(&Environment::default().home());
        settings_of::<S>().fold(command, |command, setting| command.arg(arg(setting, &defaults, S::GLOBAL)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: FlagSections> clap::FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = settings_of::<S>()
            .filter(|setting| matches.value_source(setting.name) == Some(ValueSource::CommandLine))
            .map(|setting| (setting.name, (raw(setting, matches), Origin::Flag(setting.flag()))))
            .collect();
        Ok(Flags { given, section: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(Self::from_arg_matches(matches)?.given);
        Ok(())
    }
}

/// The heading of expert settings of all sections.
const ADVANCED: &str = "Advanced";

fn arg(setting: &'static Setting, defaults: &Config, global: bool) -> Arg {
    let action = match setting.kind {
        ValueKind::Switch | ValueKind::Single => ArgAction::Set,
        ValueKind::List => ArgAction::Append,
    };
    let arg = Arg::new(setting.name)
        .long(setting.flag())
        .help(help(setting, defaults))
        .help_heading(if setting.is_advanced { ADVANCED } else { setting.section.heading() })
        .hide_short_help(setting.is_advanced)
        .global(global)
        .action(action)
        .value_parser(move |text: &str| (setting.check)(&Raw::Text(text.to_owned())).map(|()| text.to_owned()));
    match setting.kind {
        // Alone it turns the setting on. What follows it without an equals sign is another argument.
        ValueKind::Switch => {
            arg.value_name("true|false").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        // The check of the value explains `-1` better than clap's "unexpected argument".
        _ => arg.value_name(setting.value_name).allow_negative_numbers(true),
    }
}

fn help(setting: &Setting, defaults: &Config) -> String {
    let doc = setting.doc.trim().trim_end_matches('.');
    match (setting.kind, defaults.toml_value(setting.name)) {
        (ValueKind::Single, Some(value)) => format!("{doc} [default: {}]", value.trim_matches('"')),
        _ => doc.to_owned(),
    }
}

fn raw(setting: &Setting, matches: &ArgMatches) -> Raw {
    match setting.kind {
        ValueKind::Switch | ValueKind::Single => {
            Raw::Text(matches.get_one::<String>(setting.name).cloned().unwrap_or_default())
        }
        ValueKind::List => {
            let values = matches.get_many::<String>(setting.name).unwrap_or_default();
            Raw::List(values.map(|value| Raw::Text(value.clone())).collect())
        }
    }
}
