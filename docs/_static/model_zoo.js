// Search, sorting and pages of the table of all models, by https://datatables.net.
const models = new DataTable('#all-models-table', {
  order: [],
  pageLength: 25,
  lengthMenu: [25, 100, -1],
  language: {search: 'Search', searchPlaceholder: 'detection ravlt', lengthMenu: '_MENU_ rows',
             info: '_START_ to _END_ of _TOTAL_', infoFiltered: '(of _MAX_)', infoEmpty: 'none'},
});
// The button that copies code takes a click's delegateTarget, which DataTables sets, for its own.
models.table().container().addEventListener('click', (event) => event.stopPropagation());
