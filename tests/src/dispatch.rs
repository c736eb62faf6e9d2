//! Finds run-time dispatch in Rust source, which the path from one token to the next must not contain.

use std::path::Path;
use syn::visit::{self, Visit};

/// A decision made at run time that belongs at build time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File and line.
    pub place: String,
    /// What was found.
    pub what: String,
}

/// Types whose values a build fixes; branching on one means that it was not fixed.
const FIXED: [&str; 8] =
    ["Format", "Compute", "Hardware", "HardwareKind", "Mixer", "PhaseKind", "Activation", "RotaryPairs"];

/// Types that look something up by name if their keys are texts.
const LOOKUPS: [&str; 4] = ["HashMap", "BTreeMap", "HashSet", "BTreeSet"];

/// Functions that run once, at load, and so may deal with names and formats.
fn at_load(name: &str) -> bool {
    name.starts_with("load") || name.starts_with("pack") || name == "new"
}

/// Walks a source file.
///
/// # Panics
/// If it is not Rust.
pub fn walk(name: &str, source: &str) -> Vec<Finding> {
    let file = syn::parse_file(source).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut walker = Walker { name, names: names_in(&file), findings: Vec::new() };
    walker.visit_file(&file);
    walker.findings
}

/// Walks every `.rs` file below a directory except those `skip` names.
///
/// # Panics
/// If a file cannot be read or is not Rust.
pub fn walk_directory(directory: &Path, skip: &[&str]) -> (usize, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut files = 0;
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("directory entries are readable").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if skip.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            let (count, found) = walk_directory(&path, skip);
            files += count;
            findings.extend(found);
        } else if name.ends_with(".rs") {
            let source = std::fs::read_to_string(&path).expect("sources are readable");
            findings.extend(walk(&path.display().to_string(), &source));
            files += 1;
        }
    }
    (files, findings)
}

/// The text constants of a file.
fn names_in(file: &syn::File) -> Vec<syn::Ident> {
    struct Names(Vec<syn::Ident>);
    impl Names {
        fn add(&mut self, name: &syn::Ident, kind: &syn::Type) {
            if let syn::Type::Reference(reference) = kind
                && matches!(&*reference.elem, syn::Type::Path(path) if path.path.is_ident("str"))
            {
                self.0.push(name.clone());
            }
        }
    }
    impl Visit<'_> for Names {
        fn visit_item_const(&mut self, item: &syn::ItemConst) {
            self.add(&item.ident, &item.ty);
        }
        fn visit_impl_item_const(&mut self, item: &syn::ImplItemConst) {
            self.add(&item.ident, &item.ty);
        }
        fn visit_item_static(&mut self, item: &syn::ItemStatic) {
            self.add(&item.ident, &item.ty);
        }
    }
    let mut names = Names(Vec::new());
    names.visit_file(file);
    names.0
}

struct Walker<'a> {
    name: &'a str,
    /// Text constants of the file.
    names: Vec<syn::Ident>,
    findings: Vec<Finding>,
}

impl Walker<'_> {
    fn report(&mut self, span: proc_macro2::Span, what: impl Into<String>) {
        let place = format!("{}:{}", self.name, span.start().line);
        self.findings.push(Finding { place, what: what.into() });
    }

    /// Reports a path that ends with a text constant.
    fn named(&mut self, path: &syn::Path, what: &str) {
        if let Some(last) = path.segments.last().filter(|last| self.names.contains(&last.ident)) {
            self.report(last.ident.span(), format!("{what} the name in `{}`", last.ident));
        }
    }

    /// Reports a path that leads through a fixed type to one of its variants.
    fn fixed(&mut self, path: &syn::Path) {
        let types = path.segments.iter().take(path.segments.len() - 1);
        let named = types.into_iter().find(|segment| FIXED.iter().any(|fixed| segment.ident == fixed));
        if let Some(segment) = named {
            self.report(segment.ident.span(), format!("branch on `{}`", segment.ident));
        }
    }
}

/// Whether attributes confine an item to tests.
fn test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|it| it == "test");
        condition || attribute.path().is_ident("test")
    })
}

/// Whether a map or set may be keyed by text: its key type is a text, or is not stated.
fn keyed_by_text(segment: &syn::PathSegment) -> bool {
    let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments else { return true };
    let Some(syn::GenericArgument::Type(key)) = arguments.args.first() else { return true };
    let text = quote::ToTokens::to_token_stream(key).to_string();
    text.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "String" | "str"))
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

/// The paths in the operand of a comparison or method call.
fn paths_in(expression: &syn::Expr) -> Vec<&syn::Path> {
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

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !at_load(&function.sig.ident.to_string()) && !test_only(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !at_load(&function.sig.ident.to_string()) {
            visit::visit_impl_item_fn(self, function);
        }
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
        let lookup = |segment: &&syn::PathSegment| LOOKUPS.iter().any(|it| segment.ident == it);
        if let Some(segment) = path.path.segments.iter().find(lookup).filter(|it| keyed_by_text(it)) {
            self.report(segment.ident.span(), format!("lookup in a `{}`", segment.ident));
        }
        visit::visit_type_path(self, path);
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
            for side in [&*expression.left, &*expression.right] {
                for path in paths_in(side) {
                    self.fixed(path);
                    self.named(path, "comparison with");
                }
                if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = side {
                    self.report(text.span(), format!("comparison with the name \"{}\"", text.value()));
                }
            }
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let by_name = call
            .args
            .iter()
            .any(|argument| matches!(argument, syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(_), .. })));
        if by_name
            && ["get", "get_mut", "tensor", "expect_tensor", "entry"].iter().any(|it| call.method == it)
        {
            self.report(call.method.span(), format!("`{}` by name", call.method));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let name =
            invocation.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if name.ends_with("feature_detected") {
            self.report(invocation.path.segments[0].ident.span(), "branch on the CPU it runs on");
        }
        if name == "matches" {
            let tokens = invocation.tokens.to_string();
            if let Some(fixed) = FIXED.iter().find(|fixed| tokens.contains(&format!("{fixed} ::"))) {
                self.report(invocation.path.segments[0].ident.span(), format!("branch on `{fixed}`"));
            }
        }
        visit::visit_macro(self, invocation);
    }
}

/// Reports fixed types and names in a refutable pattern.
fn match_pattern(walker: &mut Walker, pattern: &syn::Pat) {
    struct Patterns<'a, 'b>(&'a mut Walker<'b>);
    impl Visit<'_> for Patterns<'_, '_> {
        fn visit_path(&mut self, path: &syn::Path) {
            self.0.fixed(path);
            self.0.named(path, "match on");
        }
        // A constant without a path parses as a new binding.
        fn visit_pat_ident(&mut self, pattern: &syn::PatIdent) {
            self.0.named(&pattern.ident.clone().into(), "match on");
        }
        fn visit_lit_str(&mut self, text: &syn::LitStr) {
            self.0.report(text.span(), format!("match on the name \"{}\"", text.value()));
        }
    }
    Patterns(walker).visit_pat(pattern);
}
