//! The chat page in a browser, against the scripted model: `tests/npm/page_test.ts`, `page_look_test.ts` and
//! `page_images_test.ts`.

use monomorph_tests::npm::Npm;
use monomorph_tests::scripted;

/// Run by `cargo xtask test` if npm and Chromium are installed.
#[test]
#[ignore = "needs npm and Chromium: xtask/clients/debian.sh"]
fn the_page_works_in_chromium() {
    let npm = Npm::install("npm");
    npm.check_types("npm");
    let (open, locked) = (scripted::talk(&[]), scripted::talk(&["--api-key", "sesame"]));
    let [open_url, locked_url] = [&open, &locked].map(|it| format!("http://{}/", it.serving.address));
    npm.test("page_test.ts", &[&open_url, &locked_url, "sesame"]);
    npm.test("page_look_test.ts", &[&open_url]);
    let sees = scripted::sees(&[]);
    npm.test("page_images_test.ts", &[&format!("http://{}/", sees.serving.address), &open_url]);
}
