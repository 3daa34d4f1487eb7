"""What a person sees and does in a browser."""

from playwright.sync_api import Browser, BrowserContext, Page
from service_process import ServiceProcess

IN_THE_FIELD = "document.activeElement.id == 'token'"  # without a click: `autofocus` comes after the page


def make_notebook(service: ServiceProcess, code: str) -> str:
    with service.client() as client:
        session_id = client.post("/v1/sessions", json={}).json()["id"]
        client.post(f"/v1/sessions/{session_id}/runs", json={"code": code})
    return str(session_id)


def test_printed_address_logs_in_and_the_token_leaves_the_url(page: Page, service: ServiceProcess) -> None:
    assert page.url == f"{service.url}/"
    assert "role admin" in page.inner_text("body")
    assert service.token not in page.content()


def test_login_form_by_keyboard(context: BrowserContext, service: ServiceProcess) -> None:
    page = context.new_page()
    page.goto(f"{service.url}/")
    assert page.url.startswith(f"{service.url}/login")
    page.wait_for_function(IN_THE_FIELD)
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    page.wait_for_function(IN_THE_FIELD)
    page.keyboard.type(service.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{service.url}/")


def test_log_out_ends_the_access(page: Page, service: ServiceProcess) -> None:
    page.click("text=Log out")
    page.wait_for_selector("input[type=password]")
    page.goto(f"{service.url}/")
    assert "/login" in page.url


def test_session_and_notebook_are_listed_and_open(page: Page, service: ServiceProcess) -> None:
    session_id = make_notebook(service, "print('seen by people')\n6 * 7")
    page.reload()
    page.click(f"text={session_id} >> nth=0")
    page.wait_for_selector("h2:has-text('Run 1')")
    assert "seen by people" in page.inner_text("body")
    assert "42" in page.inner_text("body")


def test_notebooks_are_searched_from_the_first_page_and_verified_from_the_list(
    page: Page, service: ServiceProcess
) -> None:
    session_id = make_notebook(service, "needle = 'in the haystack'")
    make_notebook(service, "other = 1")
    page.goto(service.url)
    page.fill("input[name=q]", "needle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/v1/notebooks?q=needle*")
    assert page.locator("tbody tr").count() == 1
    page.click(f"[aria-label='Verify {session_id}']")
    page.wait_for_selector("main:has-text('whole and unchanged')")


def test_names_are_escaped(page: Page, service: ServiceProcess) -> None:
    with service.client() as client:
        made = client.post("/v1/tokens", json={"name": "<script>alert(1)</script>", "role": "run"}).json()
    with service.client(made["token"]) as client:
        client.post("/v1/runs", json={"code": "1"})
    page.reload()
    assert "<script>alert(1)</script>" in page.inner_text("body")


def test_dark_mode_follows_the_system(browser: Browser, service: ServiceProcess) -> None:
    colors = []
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{service.url}/?token={service.token}")
        colors.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
    assert colors[0] != colors[1]


def test_api_page_lists_the_operations_and_loads_nothing_from_elsewhere(
    page: Page, service: ServiceProcess
) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{service.url}/docs")
    assert "/v1/tool_calls" in page.inner_text("body")
    assert all(url.startswith(service.url) for url in requested)
