//! What is a text, as far as declarations tell.

use super::test_only;
use std::collections::HashSet;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, Type};

/// The names that sources declare to be texts.
#[derive(Debug, Default)]
pub(super) struct Texts {
    constants: HashSet<String>,
    fields: HashSet<String>,
    functions: HashSet<String>,
    /// Types that are a text under another name: aliases, and structs with a text as their one field.
    types: HashSet<String>,
}

/// Methods whose value is a text if their receiver is one.
const ALIKE: [&str; 14] = [
    "as_ref", "map_err", "as_deref", "as_bytes", "as_ptr", "as_slice", "borrow", "clone", "deref", "into",
    "to_owned", "trim", "unwrap", "cloned",
];

/// Methods whose value is a text whatever their receiver is.
const ALWAYS: [&str; 5] = ["as_str", "to_string", "to_lowercase", "to_uppercase", "to_string_lossy"];

impl Texts {
    /// What files declare.
    pub fn declared<'a>(files: impl Iterator<Item = &'a syn::File> + Clone) -> Texts {
        let mut texts = Texts::default();
        // An alias may stand behind its use.
        for _ in 0..2 {
            files.clone().for_each(|file| texts.visit_file(file));
        }
        texts
    }

    /// Whether a constant of some file of this name is a text.
    pub fn constant(&self, name: &syn::Ident) -> bool {
        self.constants.contains(&name.to_string())
    }

    /// Whether a type is a text, or holds nothing else.
    pub fn of(&self, kind: &Type) -> bool {
        match kind {
            Type::Reference(reference) => self.of(&reference.elem),
            Type::Paren(paren) => self.of(&paren.elem),
            Type::Group(group) => self.of(&group.elem),
            Type::Slice(slice) => self.of(&slice.elem),
            Type::Array(array) => self.of(&array.elem),
            Type::Tuple(tuple) => tuple.elems.iter().any(|it| self.of(it)),
            Type::Path(path) => path.path.segments.last().is_some_and(|last| {
                let name = last.ident.to_string();
                let inside = || generics(last).next().is_some_and(|first| self.of(first));
                match name.as_str() {
                    "str" | "String" | "CStr" | "CString" | "OsStr" | "OsString" => true,
                    "Arc" | "Box" | "Rc" | "Cow" | "Option" | "Vec" | "Result" => inside(),
                    _ => self.types.contains(&name),
                }
            }),
            _ => false,
        }
    }

    /// Whether a map or set may be keyed by text: its key is a text, or is not stated.
    pub fn keys(&self, segment: &syn::PathSegment) -> bool {
        match generics(segment).next() {
            None | Some(Type::Infer(_)) => true,
            Some(key) => self.of(key),
        }
    }

    /// Whether an expression is a text, where these variables are.
    pub fn has(&self, expression: &Expr, locals: &[syn::Ident]) -> bool {
        let has = |expression: &Expr| self.has(expression, locals);
        match expression {
            Expr::Lit(literal) => matches!(literal.lit, Lit::Str(_) | Lit::ByteStr(_) | Lit::CStr(_)),
            Expr::Reference(inner) => has(&inner.expr),
            Expr::Paren(inner) => has(&inner.expr),
            Expr::Group(inner) => has(&inner.expr),
            Expr::Unary(inner) => matches!(inner.op, syn::UnOp::Deref(_)) && has(&inner.expr),
            Expr::Try(inner) => has(&inner.expr),
            Expr::Index(inner) => has(&inner.expr),
            Expr::Tuple(inner) => inner.elems.iter().any(has),
            Expr::Array(inner) => inner.elems.iter().any(has),
            Expr::Macro(inner) => inner.mac.path.is_ident("format") || inner.mac.path.is_ident("concat"),
            Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
                self.constant(&last.ident)
                    || path.path.get_ident().is_some_and(|name| locals.iter().any(|it| it == name))
            }),
            Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => self.fields.contains(&name.to_string()),
                syn::Member::Unnamed(_) => false,
            },
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
                    let name = last.ident.to_string();
                    let made =
                        ["Some", "Ok", "from", "new"].contains(&name.as_str()) || self.types.contains(&name);
                    self.functions.contains(&name) || made && call.args.iter().any(has)
                }),
                _ => false,
            },
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                ALWAYS.contains(&name.as_str())
                    || self.functions.contains(&name)
                    || ALIKE.contains(&name.as_str()) && has(&call.receiver)
            }
            _ => false,
        }
    }

    /// Whether an expression is plainly no text: a number, a variant, a constant of another type, or a list
    /// with such a value. Settles what a field means whose name is that of a text elsewhere.
    pub fn lacks(&self, expression: &Expr) -> bool {
        match expression {
            Expr::Lit(_) => !self.has(expression, &[]),
            Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
                last.ident.to_string().starts_with(char::is_uppercase) && !self.constant(&last.ident)
            }),
            Expr::Reference(inner) => self.lacks(&inner.expr),
            Expr::Paren(inner) => self.lacks(&inner.expr),
            Expr::Binary(_) | Expr::Cast(_) | Expr::Range(_) => true,
            Expr::Array(inner) => inner.elems.iter().any(|it| self.lacks(it)),
            _ => false,
        }
    }

    fn add_function(&mut self, signature: &syn::Signature) {
        if let syn::ReturnType::Type(_, kind) = &signature.output
            && self.of(kind)
        {
            self.functions.insert(signature.ident.to_string());
        }
    }

    fn add_constant(&mut self, name: &syn::Ident, kind: &Type) {
        if self.of(kind) {
            self.constants.insert(name.to_string());
        }
    }
}

/// The types among a segment's generic arguments.
fn generics(segment: &syn::PathSegment) -> impl Iterator<Item = &Type> {
    let arguments = match &segment.arguments {
        syn::PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments.into_iter().flatten().filter_map(|argument| match argument {
        syn::GenericArgument::Type(kind) => Some(kind),
        _ => None,
    })
}

impl Visit<'_> for Texts {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if !test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, item: &syn::ItemConst) {
        self.add_constant(&item.ident, &item.ty);
    }

    fn visit_impl_item_const(&mut self, item: &syn::ImplItemConst) {
        self.add_constant(&item.ident, &item.ty);
    }

    fn visit_trait_item_const(&mut self, item: &syn::TraitItemConst) {
        self.add_constant(&item.ident, &item.ty);
    }

    fn visit_item_static(&mut self, item: &syn::ItemStatic) {
        self.add_constant(&item.ident, &item.ty);
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        if self.of(&item.ty) {
            self.types.insert(item.ident.to_string());
        }
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        if item.fields.len() == 1 && item.fields.iter().all(|field| self.of(&field.ty)) {
            self.types.insert(item.ident.to_string());
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_field(&mut self, field: &syn::Field) {
        if let Some(name) = &field.ident
            && self.of(&field.ty)
        {
            self.fields.insert(name.to_string());
        }
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.add_function(&function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.add_function(&function.sig);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        self.add_function(&function.sig);
        visit::visit_trait_item_fn(self, function);
    }
}
