//! Finds run-time dispatch in Rust source, which the path from one token to the next must not contain.
//!
//! The walk has no types. It knows a text by its literal, by the declared type of a constant, field, function
//! or parameter of that name in any of the sources, and by the variable that such an expression was bound to.

mod texts;

use monomorph_compiler::emit::File;
use std::path::Path;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Token};
use texts::Texts;

/// A source file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// A decision made at run time that belongs at build time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The source's name.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// The function or type it stands in, `Type::function` in an implementation; empty outside of both.
    pub item: String,
    /// What was found.
    pub what: String,
}

/// The emitted file with the path from one token to the next.
pub const STACK: &str = "src/stack.rs";

/// What is exempt in an emitted crate: functions of [`STACK`] that run at load, by their name.
const EXEMPT_EMITTED: [&str; 1] = ["load"];

/// Whether a finding in an emitted crate is in code that runs once, at load.
pub fn exempt_emitted(finding: &Finding) -> bool {
    let function = finding.item.rsplit("::").next();
    finding.file == STACK && EXEMPT_EMITTED.iter().any(|it| function == Some(it))
}

/// The Rust of an emitted crate.
pub fn emitted(files: &[File]) -> Vec<Source> {
    let rust = files.iter().filter(|file| file.path.extension().is_some_and(|it| it == "rs"));
    rust.map(|file| Source { name: file.path.display().to_string(), text: file.text.clone() }).collect()
}

/// Types whose values a build fixes; branching on one means that it was not fixed.
const FIXED: [&str; 12] = [
    "Format",
    "Compute",
    "Hardware",
    "HardwareKind",
    "Mixer",
    "Ffn",
    "NormWeight",
    "PhaseKind",
    "Activation",
    "RotaryPairs",
    "Packing",
    "ScaleForm",
];

/// Types that look something up by name if their keys are texts.
const LOOKUPS: [&str; 4] = ["HashMap", "BTreeMap", "HashSet", "BTreeSet"];

/// Functions that look something up by the name they are given.
const BY_NAME: [&str; 18] = [
    "get",
    "get_mut",
    "get_key_value",
    "get_or_insert_with",
    "contains",
    "contains_key",
    "entry",
    "insert",
    "remove",
    "tensor",
    "expect_tensor",
    "function",
    "binary_search",
    "kernel",
    "any_kernel",
    "var",
    "var_os",
    "cuModuleGetFunction",
];

/// Methods that compare two texts, or a text and a part of it.
const COMPARISONS: [&str; 8] =
    ["eq", "ne", "cmp", "partial_cmp", "eq_ignore_ascii_case", "starts_with", "ends_with", "strip_prefix"];

/// Reads every `.rs` file below a directory.
///
/// # Panics
/// If one cannot be read.
pub fn read(directory: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("directory entries are readable").path();
        if path.is_dir() {
            sources.extend(read(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).expect("sources are readable");
            sources.push(Source { name: path.display().to_string(), text });
        }
    }
    sources
}

/// Walks source files, all together: what one declares is known in all. Tests are left out: modules and
/// functions that are for tests only, and the files of such modules.
///
/// # Panics
/// If one is not Rust.
pub fn walk(sources: &[Source]) -> Vec<Finding> {
    let parse = |source: &Source| {
        syn::parse_file(&source.text).unwrap_or_else(|error| panic!("{}: {error}", source.name))
    };
    let files: Vec<(&str, syn::File)> =
        sources.iter().map(|source| (source.name.as_str(), parse(source))).collect();
    let tests = test_modules(&files);
    let test = |name: &str| {
        tests.iter().any(|module| name == format!("{module}.rs") || name.starts_with(&format!("{module}/")))
    };
    let texts = Texts::declared(files.iter().map(|(_, file)| file));
    let mut findings = Vec::new();
    for (name, file) in files.iter().filter(|(name, _)| !test(name)) {
        let mut walker =
            Walker { name, texts: &texts, locals: Vec::new(), owner: None, item: String::new(), findings };
        walker.visit_file(file);
        findings = walker.findings;
    }
    findings
}

/// Paths, without `.rs`, of the modules that are for tests only and have files of their own.
fn test_modules(files: &[(&str, syn::File)]) -> Vec<String> {
    let mut modules = Vec::new();
    for (name, file) in files {
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        let (directory, last) = stem.rsplit_once('/').unwrap_or(("", stem));
        let inside = if matches!(last, "mod" | "lib" | "main") { directory } else { stem };
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && test_only(&module.attrs)
            {
                modules.push(format!("{inside}/{}", module.ident));
            }
        }
    }
    modules
}

struct Walker<'a> {
    name: &'a str,
    texts: &'a Texts,
    /// Variables that are texts.
    locals: Vec<syn::Ident>,
    /// The type of the implementation it is in.
    owner: Option<syn::Ident>,
    item: String,
    findings: Vec<Finding>,
}

impl Walker<'_> {
    fn report(&mut self, span: proc_macro2::Span, what: impl Into<String>) {
        self.findings.push(Finding {
            file: self.name.to_owned(),
            line: span.start().line,
            item: self.item.clone(),
            what: what.into(),
        });
    }

    /// Whether an expression is a text.
    fn text(&self, expression: &Expr) -> bool {
        self.texts.has(expression, &self.locals)
    }

    /// Visits below an item of this name, with variables of its own.
    fn within(&mut self, name: &syn::Ident, visit: impl FnOnce(&mut Self)) {
        let item = match &self.owner {
            Some(owner) => format!("{owner}::{name}"),
            None => name.to_string(),
        };
        let outer = std::mem::replace(&mut self.item, item);
        let locals = self.locals.len();
        visit(self);
        self.locals.truncate(locals);
        self.item = outer;
    }

    /// Reports a path that leads through a fixed type to one of its variants.
    fn fixed(&mut self, path: &syn::Path) {
        let types = path.segments.iter().take(path.segments.len() - 1);
        for segment in types {
            let named = if segment.ident == "Self" { self.owner.as_ref() } else { Some(&segment.ident) };
            if let Some(named) = named.filter(|it| is_fixed(it)) {
                self.report(segment.ident.span(), format!("branch on `{named}`"));
                return;
            }
        }
    }

    /// Reports a comparison of these operands.
    fn comparison(&mut self, span: proc_macro2::Span, sides: [&Expr; 2]) {
        for side in sides {
            for path in paths_in(side) {
                self.fixed(path);
            }
        }
        if let Some(text) = sides.into_iter().find(|side| self.text(side))
            && !sides.into_iter().any(|side| self.texts.lacks(side))
        {
            self.report(span, format!("comparison with the text `{}`", source(text)));
        }
    }

    /// Reports a function that looks up one of its arguments.
    fn lookup<'e>(&mut self, function: &syn::Ident, arguments: impl IntoIterator<Item = &'e Expr>) {
        if BY_NAME.iter().any(|it| function == it) && arguments.into_iter().any(|it| self.text(it)) {
            self.report(function.span(), format!("`{function}` by name"));
        }
    }

    /// Reports a map or set that may be keyed by text.
    fn map(&mut self, path: &syn::Path) {
        let lookup = |segment: &&syn::PathSegment| LOOKUPS.iter().any(|it| segment.ident == it);
        if let Some(segment) = path.segments.iter().find(lookup)
            && self.texts.keys(segment)
        {
            self.report(segment.ident.span(), format!("lookup in a `{}`", segment.ident));
        }
    }

    /// Walks what a macro is given: expressions, statements, items or, if it is none of these, its tokens.
    fn given(&mut self, invocation: &syn::Macro) {
        use syn::parse::Parser;
        if let Ok(all) = invocation.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            all.iter().for_each(|it| self.visit_expr(it));
        } else if let Ok(all) = syn::Block::parse_within.parse2(invocation.tokens.clone()) {
            all.iter().for_each(|it| self.visit_stmt(it));
        } else if let Ok(file) = syn::parse2::<syn::File>(invocation.tokens.clone()) {
            self.visit_file(&file);
        } else {
            self.tokens(invocation.tokens.clone());
        }
    }

    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree;
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            // Punctuation next to the token, if it is of several characters then its nearer one.
            let punct = |at: Option<usize>| match at.and_then(|at| tokens.get(at)) {
                Some(TokenTree::Punct(punct)) => punct.as_char(),
                _ => ' ',
            };
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) if name == "dyn" => self.report(name.span(), "trait object"),
                TokenTree::Ident(name) if name.to_string().ends_with("feature_detected") => {
                    self.report(name.span(), "branch on the CPU it runs on");
                }
                TokenTree::Ident(name) if LOOKUPS.iter().any(|it| name == it) => {
                    self.report(name.span(), format!("lookup in a `{name}`"));
                }
                TokenTree::Ident(name) if is_fixed(name) => {
                    // `Format::F32` before `=>`, `|`, `if` or after `==`, `!=`.
                    let after = (punct(Some(at + 4)), punct(Some(at + 5)));
                    let before = (punct(at.checked_sub(2)), punct(at.checked_sub(1)));
                    let arm = after.0 == '|' || after == ('=', '>');
                    if arm || matches!(before, ('=' | '!', '=')) || matches!(after, ('=' | '!', '=')) {
                        self.report(name.span(), format!("branch on `{name}`"));
                    }
                }
                TokenTree::Literal(text) if text.to_string().starts_with('"') => {
                    let before = (punct(at.checked_sub(2)), punct(at.checked_sub(1)));
                    let after = (punct(Some(at + 1)), punct(Some(at + 2)));
                    if matches!(before, ('=' | '!', '=')) || matches!(after, ('=' | '!', '=') | ('=', '>')) {
                        self.report(text.span(), format!("comparison with the text `{text}`"));
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_fixed(name: &syn::Ident) -> bool {
    FIXED.iter().any(|it| name == it)
}

/// An expression as text.
fn source(expression: &Expr) -> String {
    quote::ToTokens::to_token_stream(expression).to_string()
}

/// Whether attributes confine an item to tests.
fn test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|it| it == "test");
        condition || attribute.path().is_ident("test")
    })
}

/// `dyn Any + Send`: the payload of a panic in the standard library; nothing can be called on it.
fn panic_payload(object: &syn::TypeTraitObject) -> bool {
    let named = |bound: &syn::TypeParamBound| match bound {
        syn::TypeParamBound::Trait(bound) => {
            bound.path.segments.last().map(|segment| segment.ident.to_string())
        }
        _ => None,
    };
    object.bounds.iter().map(named).eq([Some("Any".to_owned()), Some("Send".to_owned())])
}

/// Whether it is the function that makes an empty value of its type.
fn makes_empty(function: &Expr) -> bool {
    matches!(function, Expr::Path(path) if path.path.segments.last().is_some_and(|it| it.ident == "new"))
}

/// The paths in the operand of a comparison.
fn paths_in(expression: &Expr) -> Vec<&syn::Path> {
    struct Paths<'a>(Vec<&'a syn::Path>);
    impl<'a> Visit<'a> for Paths<'a> {
        fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
            self.0.push(&path.path);
        }
    }
    let mut paths = Paths(Vec::new());
    paths.visit_expr(expression);
    paths.0
}

impl<'ast> Visit<'ast> for Walker<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, implementation: &'ast syn::ItemImpl) {
        if test_only(&implementation.attrs) {
            return;
        }
        let owner = match &*implementation.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.clone()),
            _ => None,
        };
        let outer = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, implementation);
        self.owner = outer;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let outer = self.owner.replace(item.ident.clone());
        visit::visit_item_trait(self, item);
        self.owner = outer;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.within(&item.ident, |walker| visit::visit_item_struct(walker, item));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.within(&item.ident, |walker| visit::visit_item_enum(walker, item));
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !test_only(&function.attrs) {
            self.within(&function.sig.ident, |walker| visit::visit_item_fn(walker, function));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !test_only(&function.attrs) {
            self.within(&function.sig.ident, |walker| visit::visit_impl_item_fn(walker, function));
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.within(&function.sig.ident, |walker| visit::visit_trait_item_fn(walker, function));
    }

    fn visit_pat_type(&mut self, pattern: &'ast syn::PatType) {
        if let syn::Pat::Ident(name) = &*pattern.pat
            && self.texts.of(&pattern.ty)
        {
            self.locals.push(name.ident.clone());
        }
        visit::visit_pat_type(self, pattern);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some(init) = &local.init {
            if init.diverge.is_some() {
                match_pattern(self, &local.pat);
            }
            if let syn::Pat::Ident(name) = &local.pat
                && self.text(&init.expr)
            {
                self.locals.push(name.ident.clone());
            }
        }
        visit::visit_local(self, local);
    }

    fn visit_type_trait_object(&mut self, object: &'ast syn::TypeTraitObject) {
        if panic_payload(object) {
            return;
        }
        let span = object.dyn_token.map_or_else(proc_macro2::Span::call_site, |token| token.span);
        self.report(span, "trait object");
        visit::visit_type_trait_object(self, object);
    }

    fn visit_type_path(&mut self, path: &'ast syn::TypePath) {
        self.map(&path.path);
        visit::visit_type_path(self, path);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.map(&path.path);
        visit::visit_expr_path(self, path);
    }

    // The type of the field states the keys.
    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        match &field.expr {
            Expr::Call(call) if makes_empty(&call.func) => {}
            _ => visit::visit_field_value(self, field),
        }
    }

    // Another name would hide the type from the rest of the walk, and so would its variants without it.
    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        if is_fixed(&rename.ident) || LOOKUPS.iter().any(|it| rename.ident == it) {
            self.report(rename.ident.span(), format!("another name for `{}`", rename.ident));
        }
    }

    fn visit_use_path(&mut self, path: &'ast syn::UsePath) {
        if is_fixed(&path.ident) {
            self.report(path.ident.span(), format!("variants of `{}` without it", path.ident));
        }
        visit::visit_use_path(self, path);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        for arm in &expression.arms {
            match_pattern(self, &arm.pat);
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_let(&mut self, expression: &'ast syn::ExprLet) {
        match_pattern(self, &expression.pat);
        visit::visit_expr_let(self, expression);
    }

    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        if matches!(expression.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_)) {
            let span = syn::spanned::Spanned::span(&expression.op);
            self.comparison(span, [&expression.left, &expression.right]);
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_index(&mut self, expression: &'ast syn::ExprIndex) {
        if self.text(&expression.index) {
            self.report(expression.bracket_token.span.open(), "index by name");
        }
        visit::visit_expr_index(self, expression);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
        {
            self.lookup(&last.ident, &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if !self.texts.lacks(&call.receiver) {
            self.lookup(&call.method, &call.args);
        }
        if let Some(argument) = call.args.first()
            && COMPARISONS.iter().any(|it| call.method == it)
        {
            self.comparison(call.method.span(), [&call.receiver, argument]);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let Some(last) = invocation.path.segments.last() else { return };
        let name = last.ident.to_string();
        if name.ends_with("feature_detected") {
            self.report(last.ident.span(), "branch on the CPU it runs on");
        }
        if name == "matches" {
            let arm = |input: syn::parse::ParseStream| {
                let value: Expr = input.parse()?;
                input.parse::<Token![,]>()?;
                let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
                let guard = if input.peek(Token![if]) {
                    input.parse::<Token![if]>()?;
                    Some(input.parse::<Expr>()?)
                } else {
                    None
                };
                input.parse::<Option<Token![,]>>()?;
                Ok::<_, syn::Error>((value, pattern, guard))
            };
            match invocation.parse_body_with(arm) {
                Ok::<_, syn::Error>((value, pattern, guard)) => {
                    match_pattern(self, &pattern);
                    self.visit_expr(&value);
                    guard.iter().for_each(|it| self.visit_expr(it));
                }
                Err(_) => self.tokens(invocation.tokens.clone()),
            }
            return;
        }
        if name.ends_with("assert_eq") || name.ends_with("assert_ne") {
            let arguments = invocation.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
            if let Ok([left, right, ..]) =
                arguments.as_ref().map(|it| it.iter().collect::<Vec<_>>()).as_deref()
            {
                self.comparison(last.ident.span(), [left, right]);
            }
        }
        self.given(invocation);
    }
}

/// Reports fixed types and names in a refutable pattern.
fn match_pattern(walker: &mut Walker, pattern: &syn::Pat) {
    struct Patterns<'a, 'b>(&'a mut Walker<'b>);
    impl Patterns<'_, '_> {
        fn constant(&mut self, name: &syn::Ident) {
            if self.0.texts.constant(name) {
                self.0.report(name.span(), format!("match on the text `{name}`"));
            }
        }
    }
    impl Visit<'_> for Patterns<'_, '_> {
        fn visit_path(&mut self, path: &syn::Path) {
            self.0.fixed(path);
            if let Some(last) = path.segments.last() {
                self.constant(&last.ident);
            }
        }
        // A constant without a path parses as a new binding.
        fn visit_pat_ident(&mut self, pattern: &syn::PatIdent) {
            self.constant(&pattern.ident);
        }
        fn visit_lit(&mut self, literal: &syn::Lit) {
            if let syn::Lit::Str(_) | syn::Lit::ByteStr(_) | syn::Lit::CStr(_) = literal {
                let text = quote::ToTokens::to_token_stream(literal);
                self.0.report(literal.span(), format!("match on the text `{text}`"));
            }
        }
    }
    Patterns(walker).visit_pat(pattern);
}
