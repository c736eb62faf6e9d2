/**
 * What every file of tests here is: functions that are run one after the other against the server whose address is given.
 *
 * A line is printed for every test and, last, "N passed, N failed"; the process exits 1 if any failed.
 */

type Test = { name: string; run: () => Promise<void> };

const TESTS: Test[] = [];

/** The address that the server was given as, and what was given besides. */
export const [url, ...given]: [string, ...string[]] = (() => {
  const [first, ...more] = process.argv.slice(2);
  if (first === undefined) {
    console.error("usage: node FILE BASE_URL ...");
    process.exit(2);
  }
  return [first, ...more];
})();

export function test(name: string, run: () => Promise<void>): void {
  TESTS.push({ name, run });
}

/** Fails the test unless `condition`; `found` is shown. */
export function expect(condition: unknown, found: unknown): asserts condition {
  if (!condition) throw new Error(typeof found === "string" ? found : JSON.stringify(found));
}

/** Fails the test unless both are the same as JSON. */
export function equal(found: unknown, wanted: unknown): void {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  expect(left === right, `${left} is not ${right}`);
}

/** How long anything may take that a busy machine puts off, in milliseconds. */
export const PATIENCE = 60_000;

/** Waits until `found` is the same as `wanted` as JSON. */
export async function becomes(found: () => Promise<unknown>, wanted: unknown): Promise<void> {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const [left, right] = [JSON.stringify(await found()), JSON.stringify(wanted)];
    if (left === right) return;
    expect(Date.now() < deadline, `${left} has not become ${right} in ${PATIENCE / 1_000} s`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The error that a promise fails with, which must be one of `kind`. */
export async function refused<E extends Error>(
  kind: abstract new (...arguments_: never[]) => E,
  asked: PromiseLike<unknown>,
): Promise<E> {
  try {
    await asked;
  } catch (error) {
    expect(error instanceof kind, `another error than ${kind.name}: ${String(error)}`);
    return error;
  }
  throw new Error(`no ${kind.name}`);
}

/** Runs all tests. */
export async function main(): Promise<void> {
  let failed = 0;
  for (const { name, run } of TESTS) {
    try {
      await run();
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}`);
      console.log(error);
    }
  }
  console.log(`${TESTS.length - failed} passed, ${failed} failed`);
  process.exitCode = failed > 0 ? 1 : 0;
}
